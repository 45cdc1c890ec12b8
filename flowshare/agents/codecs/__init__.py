"""Values with a schema in a registry: Avro, Protobuf and JSON Schema, in Confluent's wire format.

`registry` knows schemas by id and ids by schema, over `client`; `avro`, `protobuf` and `json_schema` are the codecs, on
`base`; `schemas` makes a schema of a class; `wire` has the bytes before the value; `avro_walk` and `proto_text` check
bytes and texts that cannot be trusted.
"""
