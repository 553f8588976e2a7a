defmodule ExternalService.RetryOptions do
  alias ExternalService.{Native, Options, Unit, Validation}

  @moduledoc """
  How a call is retried.

      iex> options = ExternalService.RetryOptions.new(backoff: :exponential, base: 100, max_attempts: 4)
      iex> ExternalService.RetryOptions.window(options)
      700

  Give it to a service as its `:retry` option, or to one call as `ExternalService.call/3`'s second argument, as a keyword
  list or as this struct. A keyword list changes only the options it names; a struct stands for all of them.

  ## Options

  #{Options.docs(:retry)}

  A delay is made in this order: the backoff's value, held at `:cap`, spread by `:jitter`, trimmed to what `:expiry`
  leaves. It is slept in whole milliseconds, rounded up. Neither `:expiry` nor `:max_attempts` interrupts an attempt that
  is running.
  """

  defaults = for {key, declared} <- Options.schema(:retry), do: {key, Keyword.get(declared, :default)}

  defstruct defaults

  # The longest time the core counts.
  @ns_max 0x7FFF_FFFF_FFFF_FFFF

  # What exponential backoff multiplies with, in parts per million.
  @doubled 2_000_000

  # The longest delay in milliseconds that a server may ask for where no cap is given.
  @asked_max 30_000

  @type t :: %__MODULE__{
          backoff: :exponential | :linear,
          base: non_neg_integer(),
          factor: pos_integer(),
          cap: pos_integer() | nil,
          expiry: pos_integer() | :infinity | nil,
          max_attempts: pos_integer() | :infinity,
          jitter: boolean() | number(),
          retry_on: (term() -> as_boolean(term())) | nil,
          retry_exceptions: [module()] | (Exception.t() -> as_boolean(term()))
        }

  @doc """
  Returns the struct of `options`, or raises `ExternalService.ValidationError`.

      iex> ExternalService.RetryOptions.new(base: 50).max_attempts
      5
  """
  @spec new(t() | keyword()) :: t()
  def new(options), do: merge(%__MODULE__{}, options)

  @doc """
  Returns `base` with `options` on top: a keyword list overrides the options it names, a struct replaces all.

      iex> base = ExternalService.RetryOptions.new(base: 50, max_attempts: 3)
      iex> ExternalService.RetryOptions.merge(base, max_attempts: 2).base
      50
      iex> ExternalService.RetryOptions.merge(base, %ExternalService.RetryOptions{max_attempts: 2}).base
      10
  """
  @spec merge(t(), t() | keyword()) :: t()
  def merge(base, options, path \\ [])

  def merge(%__MODULE__{}, %__MODULE__{} = options, path) do
    Validation.check_given!(:retry, given(options), path)
    options
  end

  def merge(%__MODULE__{} = base, options, path) when is_list(options) do
    Validation.check_given!(:retry, options, path)
    struct!(base, options)
  end

  @doc """
  Returns the milliseconds a call spends between its attempts when all of them fail, jitter left out.

  Without a bound on the attempts it is `:expiry`, and `:infinity` when there is none either.

      iex> ExternalService.RetryOptions.window(base: 100, max_attempts: 10)
      51100
      iex> ExternalService.RetryOptions.window(max_attempts: :infinity)
      :infinity
  """
  @spec window(t() | keyword()) :: non_neg_integer() | :infinity
  def window(options) do
    options |> new() |> schedule() |> Native.backoff_window() |> Unit.ms()
  end

  # What the core's backoff works on.
  @doc false
  @spec schedule(t()) :: Native.schedule()
  def schedule(%__MODULE__{} = options) do
    base = Unit.ns(options.base)
    step = min(base * options.factor, @ns_max)
    asked_max = Unit.ns(options.cap || @asked_max)

    {options.backoff, base, step, @doubled, {}, Unit.ns(options.cap), Unit.ns(options.expiry), options.max_attempts,
     jitter_ppm(options.jitter), asked_max}
  end

  # A field of nil is an option that was not given.
  defp given(options), do: for({key, value} <- Map.to_list(options), key != :__struct__, value != nil, do: {key, value})

  defp jitter_ppm(false), do: 0
  defp jitter_ppm(true), do: Unit.ppm(0.1)
  defp jitter_ppm(share), do: Unit.ppm(share)
end
