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
		if err := f.Check(url); err == nil || Refused(err) != refused {
			t.Errorf("%s: %v, refused %v", url, err, Refused(err))
		}
	}
	for _, url := range []string{"http://host.example/a.png", "data:,x"} {
		if err := f.Check(url); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
	for range 2 {
		if _, err := f.Size(t.Context(), "data:,x"); err == nil {
			t.Error("a text is a picture")
		}
	}
	if s := f.Stats(); s.Sizes != 0 || s.Files != 0 || s.Bytes != 0 {
		t.Errorf("%+v", s)
	}
}
