"""Which agent a request is for, and which worker its conversation lives on."""
