package strictjson

// PeekType returns the string under the key "type" of the next value, an object, without consuming
// it; "" if it has none. It validates the object as SkipValue would. Where the meaning of an
// object's keys depends on its type, which may come last, this avoids buffering the other keys.
func (r *Reader) PeekType() (string, error) {
	ahead := *r // the copy's stacks grow beyond r's, so r does not change
	var kind string
	err := ahead.ReadObject(func(key string) error {
		if key == "type" && ahead.Kind() == StringKind {
			return ahead.ReadStringInto(&kind)
		}
		return ahead.SkipValue()
	})
	return kind, err
}
