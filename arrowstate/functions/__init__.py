"""The code of users and what runs it: functions of records and of batches."""
