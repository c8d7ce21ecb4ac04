"""The net carries messages between processes: connections, calls with deadlines, back-pressure, and
the real `World`. This is the only package that opens sockets.
"""
