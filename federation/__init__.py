"""The parts that both local experiments and real fleets use: keys, brokers and the commands of an operator.

May import: nothing of ours.
"""
