"""The log takes groups in LSN order from the writer whose epoch is current, and answers when they
are durable. Whatever arrives during one sync is one batch, with one sync of its own.
"""
