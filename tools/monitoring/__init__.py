"""Write the Grafana dashboards of deploy/compose."""
