"""The contract of clients and hosts: its calls, structs, errors and bytes. It depends on neither of them."""
