"""The life of a search: trials made, admitted, run, told, decided about, and all of it in a journal."""
