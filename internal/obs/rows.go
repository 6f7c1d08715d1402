package obs

import "slices"

// LimitRows returns the first rows of a collector which fit into room bytes of scraped output, and
// calls rest for each of the others, whose sum becomes one more row under [Other]. size returns the
// bytes of a row. LimitRows modifies rows.
func LimitRows[R any](room int, rows []R, size func(R) int, rest func(R)) []R {
	return slices.DeleteFunc(rows, func(r R) bool {
		if room -= size(r); room >= 0 {
			return false
		}
		rest(r)
		return true
	})
}
