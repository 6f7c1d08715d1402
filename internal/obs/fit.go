package obs

import "slices"

// Fit returns the first rows of what a collector shows, as many as fit into room bytes of what is scraped,
// and calls rest with each of the others: their sum is one more row, under [Other]. size is what a row takes.
// rows is changed.
func Fit[R any](room int, rows []R, size func(R) int, rest func(R)) []R {
	return slices.DeleteFunc(rows, func(r R) bool {
		if room -= size(r); room >= 0 {
			return false
		}
		rest(r)
		return true
	})
}
