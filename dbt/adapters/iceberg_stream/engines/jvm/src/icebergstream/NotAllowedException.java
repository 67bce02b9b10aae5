package icebergstream;

import org.apache.spark.SparkThrowable;

/** A statement that a guarded session does not run. */
public final class NotAllowedException extends RuntimeException implements SparkThrowable {
  static final String NOT_ALLOWED = "STATEMENT_NOT_ALLOWED";
  static final String NOT_A_QUERY = "STATEMENT_IS_NOT_A_QUERY";
  private static final long serialVersionUID = 1L;

  private final String condition;

  NotAllowedException(String message) {
    this(NOT_ALLOWED, message);
  }

  NotAllowedException(String condition, String message) {
    super(message);
    this.condition = condition;
  }

  @Override
  public String getCondition() {
    return condition;
  }

  @Override
  public String getErrorClass() {
    return condition;
  }
}
