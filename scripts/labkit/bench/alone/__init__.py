"""The benchmark without daemons: both ends of two flows lose theirs for good, and then paths fail and heal.

plan      pure: which faults follow each other, and where
faults    makes a fault, sees the paths left and back, and measures what they carry then
judge     pure: summaries and requirements
text      pure: the document → tables
picture   pure: the document → panels.Picture
part      the PART
"""
