package strictjson

// PeekType returns the string under the key "type" of the next value, an object, without consuming
// it; "" if it has none. It validates the object as SkipValue would. Where the meaning of an
// object's keys depends on its type, which may come last, this avoids buffering the other keys.
func (r *Reader) TypeAhead() (string, error) {
	ahead := *r // the copy's stacks grow beyond r's, so r does not change
	var kind string
	err := ahead.Object(func(key string) error {
		if key == "type" && ahead.Kind() == StringKind {
			return ahead.Text(&kind)
		}
		return ahead.Skip()
	})
	return kind, err
}
