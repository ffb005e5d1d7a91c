"""One file a database. Nothing outside the place that opens a URL names one of them."""
