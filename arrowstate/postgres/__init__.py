"""PostgreSQL for jobs of the runtime and streams of Spark: connections, rows as text, rows with their token."""
