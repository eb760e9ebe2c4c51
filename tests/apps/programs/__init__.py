"""Small clients and servers for programs that bring none of their own."""
