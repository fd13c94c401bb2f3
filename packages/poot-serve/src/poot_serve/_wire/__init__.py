"""What goes over HTTP, as typed structures: read, written and described from one definition."""
