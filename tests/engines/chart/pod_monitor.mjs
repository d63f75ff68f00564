// Check a PodMonitor from standard input against the schema of the Prometheus operator; exit code 1 with the problem.
import { readFileSync } from "node:fs";
import { PodMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";

try {
  new PodMonitor(JSON.parse(readFileSync(0, "utf8"))).validate();
} catch (error) {
  console.error(error.message);
  process.exit(1);
}
