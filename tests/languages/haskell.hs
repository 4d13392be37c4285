{-# LANGUAGE BangPatterns #-}
import Control.Exception
import Control.Concurrent
fib :: Int -> Int
fib n = if n < 2 then n else fib (n-1) + fib (n-2)
{-# NOINLINE fib #-}
main :: IO ()
main = do
  r <- try (evaluate (foldr (\x s -> if x == 500 then throw Overflow else x + s) 0 [1 .. 1000 :: Int])) :: IO (Either ArithException Int)
  m <- newEmptyMVar
  mapM_ (\i -> forkIO (putMVar m $! fib i)) [10..13]
  xs <- mapM (const (takeMVar m)) [1..4 :: Int]
  print (fib 20, either show show r, sum xs)
