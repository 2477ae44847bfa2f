"""The laboratory: studies, search, report and clusters. What a researcher runs."""
