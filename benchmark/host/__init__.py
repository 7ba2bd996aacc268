"""What runs on a host: short verbs that each answer one JSON object within ten seconds.

Long work (a start, a point) is a unit of the service manager; a verb takes one step towards what was asked and
says where things stand, so that whoever calls may lose its connection at any moment and ask again.
"""
