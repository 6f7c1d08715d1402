package config

import "path/filepath"

// HubCacheDir returns the directory in which Hugging Face programs cache downloaded checkpoints, by their
// standard variables; "" if none of them is set.
func (l *Loaded) HubCacheDir() string { return l.hubCacheDir }

func findHubCacheDir(environ []string) string {
	for _, name := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"} {
		if dir := lookupEnv(environ, name); dir != "" {
			return dir
		}
	}
	for _, of := range []struct{ name, below string }{
		{"HF_HOME", "hub"},
		{"XDG_CACHE_HOME", "huggingface/hub"},
		{"HOME", ".cache/huggingface/hub"},
		{"USERPROFILE", ".cache/huggingface/hub"},
	} {
		if dir := lookupEnv(environ, of.name); dir != "" {
			return filepath.Join(dir, filepath.FromSlash(of.below))
		}
	}
	return ""
}
