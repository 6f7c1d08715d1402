package api

import (
	"fmt"
	"slices"

	"penstock/internal/strictjson"
)

// Value is a kind of value: its JSON schema, and the function which reads it. Functions of this file which
// take "at" return a Value which is read into the place that at returns.
type Value struct {
	Schema string // "" if only null is accepted
	Read   func(*BodyDecoder) error
}

// Values which have no effect, whatever they are.
var (
	AnyBool    = Value{BoolSchema, (*BodyDecoder).IgnoreBool}
	AnyString  = Value{StringSchema, (*BodyDecoder).IgnoreString}
	AnyObject  = Value{ObjectSchema, (*BodyDecoder).IgnoreObject}
	AnyValue   = Value{`{}`, func(d *BodyDecoder) error { return d.SkipValue() }}
	AnyInteger = Value{`{"type":"integer"}`, func(d *BodyDecoder) error {
		_, err := d.ReadInt()
		return err
	}}
)

// Values which request the only supported behavior. Others are refused.
var (
	OnlyNull    = Value{"", (*BodyDecoder).RefuseUnsupported}
	OnlyTrue    = Value{`{"const":true}`, (*BodyDecoder).RequireTrue}
	OnlyFalse   = Value{`{"const":false}`, (*BodyDecoder).RequireFalse}
	EmptyArray  = Value{EmptyArraySchema, func(d *BodyDecoder) error { return d.RequireEmptyArray(NotSupported) }}
	EmptyObject = Value{`{"const":{}}`, func(d *BodyDecoder) error {
		return d.ReadObject(func(string) error { return d.ParentInvalidError(NotSupported) })
	}}
)

// OnlyString returns a string whose only supported value is ok.
func OnlyString(ok string) Value {
	return Value{ConstSchema(ok), func(d *BodyDecoder) error { return d.RequireString(ok) }}
}

// OneOf returns a string which must be one of words, and has no effect.
func OneOf(words ...string) Value {
	return Value{EnumSchema(words...), func(d *BodyDecoder) error {
		_, err := d.ReadWord(words...)
		return err
	}}
}

// Bool returns a boolean.
func Bool(at func(*Request) *bool) Value {
	return Value{BoolSchema, func(d *BodyDecoder) error { return d.ReadBoolInto(at(d.Req)) }}
}

// InvertedBool returns a boolean which the request has inverted.
func InvertedBool(at func(*Request) *bool) Value {
	return Value{BoolSchema, func(d *BodyDecoder) error {
		on, err := d.ReadBool()
		*at(d.Req) = !on
		return err
	}}
}

// String returns a string.
func String(at func(*Request) *string) Value {
	return Value{StringSchema, func(d *BodyDecoder) error { return d.ReadStringInto(at(d.Req)) }}
}

// Number returns a number within [lo, hi].
func Number(lo, hi float64, at func(*Request) **float64) Value {
	return Value{
		fmt.Sprintf(`{"type":"number","minimum":%v,"maximum":%v}`, lo, hi),
		func(d *BodyDecoder) error { return d.ReadNumberInto(at(d.Req), lo, hi) },
	}
}

// AnyNumber returns a number within [lo, hi] which has no effect.
func AnyNumber(lo, hi float64) Value {
	v := Number(lo, hi, nil)
	v.Read = func(d *BodyDecoder) error {
		var f *float64
		return d.ReadNumberInto(&f, lo, hi)
	}
	return v
}

// Integer returns an integer within [lo, hi]; strictjson.MaxCount as hi stands for no bound.
func Integer(lo, hi int64, at func(*Request) *int) Value {
	return Value{IntegerSchema(lo, hi), func(d *BodyDecoder) error { return d.ReadIntegerInto(at(d.Req), lo, hi) }}
}

// Values of fields which several dialects have.
var (
	Model     = String(func(q *Request) *string { return &q.Model })
	Stream    = Bool(func(q *Request) *bool { return &q.Stream })
	MaxTokens = Integer(1, strictjson.MaxCount, func(q *Request) *int { return &q.MaxTokens })
	TopP      = Number(0, 1, func(q *Request) **float64 { return &q.TopP })
	OneCall   = InvertedBool(func(q *Request) *bool { return &q.OneCall })
	Salt      = Value{`{"type":"string","minLength":1,"maxLength":1024}`, func(d *BodyDecoder) error { return d.ReadSalt(&d.Req.CacheSalt) }}
	// MediaFailure is the value of nvext.media_failure.
	MediaFailure = Value{EnumSchema(MediaPolicyNames()...), func(d *BodyDecoder) error {
		names := MediaPolicyNames()
		policy, err := d.ReadWord(names...)
		d.Req.Ext.MediaFailure = MediaPolicy(max(0, slices.Index(names, policy)))
		return err
	}}
)

// TopK returns the value of top_k, an integer of at least lo.
func TopK(lo int64) Value {
	return Value{IntegerSchema(lo, strictjson.MaxCount), func(d *BodyDecoder) error { return d.ReadTopK(lo) }}
}

// Temperature returns the value of temperature, at most hi.
func Temperature(hi float64) Value {
	return Number(0, hi, func(q *Request) **float64 { return &q.Temperature })
}
