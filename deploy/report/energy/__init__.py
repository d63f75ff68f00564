"""What devices have drawn from their supply: in a run's report, and accuracy against it in a comparison.

May import: deploy, deploy.report, deploy.report.drawing, protocol.*.
"""
