"""How a plan is run: lowered to pipelines of units, which processes work through while somebody takes the rows."""
