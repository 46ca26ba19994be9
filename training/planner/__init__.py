"""Which rank holds which table, from what a step costs: pure functions of tables, cluster and hardware."""
