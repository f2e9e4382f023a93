# SPDX-License-Identifier: BSD-2-Clause
"""Tests loss and round trips, which are counted as ping does."""

from mrcd.ctl.packets.tally import Tally


def test_nothing_sent() -> None:
    assert Tally(send_error="no first hop").document() == {
        "sent": 0, "received": 0, "lost": 0, "duplicates": 0, "loss_ratio": None, "rtt_min_ns": None,
        "rtt_avg_ns": None, "rtt_max_ns": None, "rtt_mdev_ns": None, "send_error": "no first hop",
    }  # fmt: skip


def test_a_few_lost() -> None:
    document = Tally(sent=8, rtts=[2000, 4000, 4000, 4000, 5000, 5000, 7000, 9000], duplicates=1).document()
    # The textbook's example: mean 5, standard deviation 2.
    assert [document[f"rtt_{k}_ns"] for k in ("min", "avg", "max", "mdev")] == [2000, 5000, 9000, 2000]
    assert (document["lost"], document["loss_ratio"], document["duplicates"]) == (0, 0.0, 1)
    assert Tally(sent=10, rtts=[5]).document()["loss_ratio"] == 0.9
