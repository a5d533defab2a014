"""What a person looks at: tables, figures and the HTML page."""
