"""Protobuf classes as protoc makes them, without protoc."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TYPES = {"int32": 5, "string": 9, "message": 11}
_POOL = descriptor_pool.DescriptorPool()


def _field(message: Any, name: str, number: int, kind: str, of: str = "") -> None:
    message.field.add(name=name, number=number, type=_TYPES[kind], label=1, type_name=of or None)


def _file(name: str, package: str, *imports: str) -> Any:
    return descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3", dependency=imports)


def _class(name: str, pool: Any = _POOL) -> Any:
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


_parts = _file("shop/parts.proto", "shop.parts")
_field(_parts.message_type.add(name="Part"), "code", 1, "string")
_POOL.Add(_parts)

_shop = _file("shop/order.proto", "shop", "shop/parts.proto")
_order = _shop.message_type.add(name="Order")
_field(_order, "id", 1, "int32")
_field(_order, "part", 2, "message", ".shop.parts.Part")
_field(_order.nested_type.add(name="Line"), "n", 1, "int32")
_field(_shop.message_type.add(name="Other"), "text", 1, "string")
_POOL.Add(_shop)

Part, Order, Line, Other = (_class(name) for name in ("shop.parts.Part", "shop.Order", "shop.Order.Line", "shop.Other"))

_later = descriptor_pool.DescriptorPool()
_plain = _file("shop/plain.proto", "shop")
_field(_plain.message_type.add(name="Plain"), "id", 1, "int32")
_more = descriptor_pb2.FileDescriptorProto.FromString(_plain.SerializeToString())
_field(_more.message_type[0], "note", 2, "string")
_POOL.Add(_plain)
_later.Add(_more)
Plain, PlainLater = _class("shop.Plain"), _class("shop.Plain", _later)
"""A message, and a later version of it."""
