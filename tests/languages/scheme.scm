(define c 0)
(define (fib n) (set! c (+ c 1)) (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2)))))
(define (deep n) (if (= n 0) (call/cc (lambda (k) (k 7))) (+ 1 (deep (- n 1)))))
(display (fib 20)) (display " fib=") (display c) (display " ") (display (deep 10000)) (newline)
