package fetch

import "errors"

// Check returns an error if a URL may not be fetched, as far as its text tells.
func (f *Fetcher) Check(uri string) error {
	_, err := f.cfg.parse(uri)
	return err
}

// Unranged reports whether err, of [Fetcher.Size], says that the host of a URL sends no parts of its
// file. [Fetcher.Get] may have it all the same, and with it the size.
func Unranged(err error) bool { return errors.Is(err, errRange) }

// Refused reports whether err, of a Fetcher, says that the address of a URL is none that may be
// fetched from, or that its file is larger than may be: others would have to refuse it too, while what
// else went wrong may go right for them.
func Refused(err error) bool {
	return errors.Is(err, errRefused) || errors.Is(err, errTooLarge) || isTooLarge(err)
}
