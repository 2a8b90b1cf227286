"""The trainables of a trial: functions, classes, trainers."""
