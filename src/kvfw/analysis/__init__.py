"""Numbers from records: statistics, comparisons, results. Nothing here renders."""
