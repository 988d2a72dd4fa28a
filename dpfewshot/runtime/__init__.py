"""General support code: error redaction, fork safety, atomic files, lazy names."""
