"""What a trial runs: functions, classes, trainers."""
