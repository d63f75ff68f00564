"""What tests of several rooms are built from: small federations, liars, brokers that lie, certificates."""
