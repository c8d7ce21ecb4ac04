"""What the command line prints: tables, results, errors. No decisions here."""
