"""The rows that `tools/bench kafka` sends, as Avro has them."""

AVRO = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "amount", "type": "long"},
        {"name": "pad", "type": "string"},
        {"name": "at", "type": "long"},
    ],
}
