! Fortran: a recursive function and a subroutine with array arguments.
!# arc: main -> MAIN__ 1
!# arc: MAIN__ -> fact_ 1
!# arc: fact_ -> fact_ 9
!# arc: MAIN__ -> scale_ 100
!# stdout: ok
!# flags: -fno-inline -fno-ipa-cp -fno-ipa-pure-const -fno-ipa-sra -fno-ipa-icf
recursive integer function fact(n) result(r)
  implicit none
  integer, intent(in) :: n
  integer, volatile :: below
  if (n <= 1) then
    r = 1
  else
    below = fact(n - 1)
    r = n * below
  end if
end function
subroutine scale(a, n, by)
  implicit none
  integer, intent(in) :: n
  real(8), intent(inout) :: a(n)
  real(8), intent(in) :: by
  integer :: i
  do i = 1, n
    a(i) = a(i) * by
  end do
end subroutine
program test
  implicit none
  integer, external :: fact
  real(8) :: a(10)
  integer :: i
  a = 1
  if (fact(10) /= 3628800) stop 1
  do i = 1, 100
    call scale(a, 10, 1.01d0)
  end do
  if (abs(a(5) - 1.01d0**100) > 1d-9) stop 2
  print '(a)', 'ok'
end program
