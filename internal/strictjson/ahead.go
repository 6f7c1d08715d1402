package strictjson

// TypeAhead returns the string under the key "type" of the object that is the next
// value, which is still the next value then; "" if it has none. The object is
// judged as Skip would. Where what an object's keys mean depends on its type, which
// may be the last of them, this saves keeping the others until it comes.
func (r *Reader) TypeAhead() (string, error) {
	ahead := *r // its stacks grow behind r's own, which leaves r as it was
	var kind string
	err := ahead.Object(func(key string) error {
		if key == "type" && ahead.Kind() == StringKind {
			return ahead.Text(&kind)
		}
		return ahead.Skip()
	})
	return kind, err
}
