# SPDX-License-Identifier: BSD-2-Clause
"""Makes the documents of the API, of mrcctl and of the metrics from the tables."""
