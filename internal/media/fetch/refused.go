package fetch

import "errors"

// Check returns an error if fetching a URL is not allowed, as far as its text tells.
func (f *Fetcher) Check(uri string) error {
	_, err := f.cfg.parseURL(uri)
	return err
}

// IsUnranged reports whether err, from [Fetcher.Size], means that the host does not support range
// requests. [Fetcher.Get] may succeed nevertheless, and yield the size.
func IsUnranged(err error) bool { return errors.Is(err, errRange) }

// IsRefused reports whether err, from a Fetcher, means that fetching from the URL's address is not
// allowed, or that its file is too large. Other processes would have to refuse it too, while other
// errors may not occur for them.
func IsRefused(err error) bool {
	return errors.Is(err, errRefused) || errors.Is(err, errTooLarge) || isTooLarge(err)
}
