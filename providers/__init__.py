"""Block storage backends behind one interface; on the untrusted host side."""
