! Procedures whose arguments gdb prints.
module procedures
  implicit none
  integer(8), volatile :: sink
contains
  integer function add(a, b, c)
    integer, intent(in) :: a
    integer(8), intent(in) :: b
    integer, value :: c
    add = a + int(b) + c
    sink = add
  end function
  subroutine reals(x, y, z, n)
    real, intent(in) :: x
    real(8), intent(in) :: y
    real(8), value :: z
    integer(2), intent(in) :: n
    sink = int(x + y + z) + n
  end subroutine
  subroutine texts(first, n, second, flag)
    character(len=*), intent(in) :: first
    integer, intent(in) :: n
    character(len=4), intent(in) :: second
    logical, intent(in) :: flag
    sink = len(first) + n + len(second)
    if (flag) sink = sink + 1
    print *, first, second
  end subroutine
  function repeated(text, n) result(r)
    character(len=*), intent(in) :: text
    integer, intent(in) :: n
    character(len=len(text) * n) :: r
    r = repeat(text, n)
    sink = n
  end function
  function numbers(n, start) result(r)
    integer, intent(in) :: n
    integer, intent(in) :: start
    integer :: r(n)
    r = start
    sink = n
  end function
  subroutine arrays(a, b, n, m)
    real, intent(in) :: a(:)
    integer, intent(in) :: n
    integer, intent(in) :: b(n)
    integer(8), intent(in) :: m
    sink = size(a) + b(1) + n + m
  end subroutine
end module

program arguments
  use procedures
  implicit none
  real :: a(3)
  integer :: b(2)
  a = 1.5
  b = 4
  print *, add(1, 2_8, 3)
  call reals(1.5, -2.25d0, 3.125d0, 4_2)
  call texts("first", 5, "four", .true.)
  print *, repeated("ab", 3)
  print *, numbers(3, -7)
  call arrays(a, b, 2, 10000000000_8)
end program
