"""Energy that devices have used: in a run's report, and accuracy against it in a comparison.

May import: deploy, deploy.report, deploy.report.drawing, protocol.*.
"""
