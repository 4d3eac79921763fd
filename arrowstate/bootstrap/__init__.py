"""Tables become keyed state: what is planned, filled and committed, whoever brings the rows."""
