"""What a person looks at: the table of `fedcom compare`, figures, and the HTML page of `fedcom report`."""
