package responses

const notSupported = "is not supported by this server: leave it out"

// unused reads the fields that nothing is done with: accepted where ignoring them
// cannot change the answer, refused by name where it would.
func (d *decoder) unused(key string) (known bool, err error) {
	switch key {
	case "store": // nothing is stored, and the answer says so
		_, err := d.ReadBool()
		return true, err
	case "service_tier", "prompt_cache_retention":
		_, err := d.ReadString()
		return true, err
	case "prompt_cache_options":
		return true, d.ReadObject(d.cacheOption)
	case "image": // of which there are none
		return true, d.ReadObject(func(string) error { return d.SkipValue() })
	case "stream_options":
		d.streamOptions = true
		return true, d.ReadObject(d.streamOption)
	case "background":
		return true, d.only(false)
	case "truncation":
		return true, d.usual("disabled")
	case "context_management":
		return true, d.ReadArray("an array", func(int) error { return d.ParentInvalidError(notSupported) })
	case "previous_response_id", "conversation", "prompt":
		return true, d.InvalidError("is not supported: this server keeps nothing between requests, so send the whole conversation as 'input'")
	case "moderation", "access_programs":
		return true, d.InvalidError(notSupported)
	}
	return false, nil
}

// streamOption reads one field of stream_options. Obfuscation pads events with
// random characters, which clients drop; there is none.
func (d *decoder) streamOption(key string) error {
	if none, err := d.ReadNull(); none || err != nil {
		return err
	}
	if key != "include_obfuscation" {
		return d.UnsupportedError()
	}
	_, err := d.ReadBool()
	return err
}

// cacheOption reads one field of prompt_cache_options: hints, since what can be
// reused is found by itself, except values which ask for another kind of answer.
func (d *decoder) cacheOption(key string) error {
	if none, err := d.ReadNull(); none || err != nil {
		return err
	}
	switch key {
	case "mode", "ttl":
		_, err := d.ReadString()
		return err
	case "prewarm":
		return d.only(false)
	case "comparison_response_id":
		return d.InvalidError(notSupported)
	}
	return d.UnsupportedError()
}

// only reads a boolean that must be ok.
func (d *decoder) only(ok bool) error {
	b, err := d.ReadBool()
	if err == nil && b != ok {
		return d.InvalidError(notSupported)
	}
	return err
}

// usual reads a string that must be a value which asks for what happens anyway.
func (d *decoder) usual(ok ...string) error {
	s, err := d.ReadString()
	if err != nil {
		return err
	}
	for _, o := range ok {
		if s == o {
			return nil
		}
	}
	return d.InvalidError(notSupported)
}
