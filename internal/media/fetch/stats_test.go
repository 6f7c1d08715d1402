package fetch

import "testing"

// TestRefused: what others must refuse too is told from what may go right for them.
func TestRefused(t *testing.T) {
	f, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for url, refused := range map[string]bool{
		"http://127.0.0.1/": true, "http://169.254.169.254/": true, "http://[::1]/": true, "http://10.0.0.1/x": true,
		"ftp://a/": false, "http://user@host.example/": false,
	} {
		if err := f.Check(url); err == nil || IsRefused(err) != refused {
			t.Errorf("%s: %v, refused %v", url, err, IsRefused(err))
		}
	}
	if err := f.Check("http://host.example/a.png"); err != nil {
		t.Error(err)
	}
}
